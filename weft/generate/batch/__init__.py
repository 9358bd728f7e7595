"""What requests of one engine have in common: the steps they share, and the beginnings of their texts."""
