"""The fast launcher: one file of bytecode that is its own interpreter line (see ``build``), and the way to start a fresh
interpreter with the same modules (see ``child``)."""
