"""Questions to private records, and answers with exact noise."""
