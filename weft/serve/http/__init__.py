"""HTTP itself: bodies, routes, the guard around them, the process."""
