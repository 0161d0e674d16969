"""Properties played on a session, and the search for a failing script."""
