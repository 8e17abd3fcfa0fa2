"""Everything about GPUs: request, driver, edits, CDI, and the stand-alone prestart hook."""
