"""A run shown: its story as plain values, and pages made of them."""
