"""What commands print: each file has functions from a value to lines, and nothing is printed here."""
