"""The actions of one step, the messages between them and what follows the last backward."""
