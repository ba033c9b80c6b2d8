"""The transport for RabbitMQ: delays wait in the broker, in a cascade of queues."""
