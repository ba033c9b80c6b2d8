"""Redis on an asyncio event loop: many calls share few connections."""
