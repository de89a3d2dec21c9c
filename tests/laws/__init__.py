"""Laws that every way of talking obeys; a method enters them by one line in `laws.family`."""
