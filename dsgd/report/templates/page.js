"use strict";
const all = (selector, within = document) => [...within.querySelectorAll(selector)];
const content = (id) => JSON.parse(document.getElementById(id).textContent);

// ---- light and dark: that of the system until the switch is used

const dark = matchMedia("(prefers-color-scheme: dark)");
const root = document.documentElement;
const isDark = () => (root.style.colorScheme || (dark.matches ? "dark" : "light")) === "dark";
const scheme = document.getElementById("scheme");

function showScheme() {
  scheme.setAttribute("aria-label", isDark() ? "Switch to light" : "Switch to dark");
  scheme.title = scheme.getAttribute("aria-label");
}

scheme.addEventListener("click", () => {
  root.style.colorScheme = isDark() ? "light" : "dark";
  showScheme();
});
dark.addEventListener("change", showScheme);

// ---- tables: a heading sorts by its column, again the other way round; cells without a number stay last

for (const table of all("table.sortable")) {
  all("thead th", table).forEach((heading, column) => {
    heading.querySelector("button").addEventListener("click", () => {
      const down = heading.getAttribute("aria-sort") === "ascending";
      for (const other of all("thead th", table)) other.removeAttribute("aria-sort");
      heading.setAttribute("aria-sort", down ? "descending" : "ascending");
      const body = table.tBodies[0];
      const rows = [...body.rows].map((row) => ({ row, key: keyOf(row.cells[column]) }));
      rows.sort((a, b) => compare(a.key, b.key, down ? -1 : 1));
      body.append(...rows.map(({ row }) => row));
    });
  });
}

function keyOf(cell) {
  if (cell.dataset.value !== undefined) return Number(cell.dataset.value);
  return cell.classList.contains("number") ? null : cell.innerText.trim();
}

function compare(a, b, sign) {
  if (a === null || b === null) return (a === null) - (b === null);
  return sign * (typeof a === "number" ? a - b : a.localeCompare(b, "en", { numeric: true }));
}

// ---- rows: files made from what is in the page

function quoted(value) {
  if (value === null || value === undefined) return "";
  const text = typeof value === "object" ? JSON.stringify(value) : String(value);
  return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

const forms = {
  jsonl: (rows) => rows.map((row) => JSON.stringify(row) + "\n").join(""),
  csv: (rows) => {
    const columns = [...new Set(rows.flatMap(Object.keys))];
    const lines = rows.map((row) => columns.map((name) => quoted(row[name])).join(","));
    return [columns.map(quoted).join(","), ...lines, ""].join("\n");
  },
};

for (const button of all(".download")) {
  button.addEventListener("click", () => {
    const form = button.dataset.form;
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([forms[form](content("all-rows"))], { type: "text/plain" }));
    link.download = `rows.${form}`;
    link.click();
    URL.revokeObjectURL(link.href);
  });
}

showScheme();
