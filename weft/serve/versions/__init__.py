"""Models of the registry in a server: followed aliases, shadow runs, and the routes for both."""
