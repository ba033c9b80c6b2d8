"""The transport for RabbitMQ: delayed messages wait in the broker, in a cascade of queues."""
