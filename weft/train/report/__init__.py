"""What a training leaves to look at: a curve in the terminal, a picture, a page."""
