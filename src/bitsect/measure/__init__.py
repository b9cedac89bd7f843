"""What a program is asked: accuracy, traces, pairs, noise, damage; from these, tables of numbers."""
