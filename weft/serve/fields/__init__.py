"""The fields of request bodies: settings of other servers, and what is wrong with a body."""
