"""The pages of the site, one module each: from what was loaded to a frozen view that a template shows."""
