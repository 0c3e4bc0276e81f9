"""The roles of asynchronous training as processes: workers, a server, its replica, helpers, and their scheduler."""
