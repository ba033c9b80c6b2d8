"""Redis on an event loop: many calls share few connections, whose replies come in order."""
