"""Results for people: tables in the terminal, CSV text, and a web page in one file."""
