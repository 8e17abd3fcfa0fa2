"""Config and facts of the host → what will be done, as records: pure, all bad input is refused here."""
