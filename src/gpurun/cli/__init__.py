"""What the user types: one table of commands, a parser for machines, click for people."""
