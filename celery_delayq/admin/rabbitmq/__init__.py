"""Administration of a RabbitMQ broker."""
