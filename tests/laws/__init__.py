"""Laws that every strategy obeys; a method enters them by one line in `laws.family`."""
