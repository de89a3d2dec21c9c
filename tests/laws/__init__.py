"""Laws that every strategy obeys; a method enters them by one entry in `members`."""
