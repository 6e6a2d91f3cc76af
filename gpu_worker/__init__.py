"""One process, one GPU: keeps a model resident and generates what the driver assigns."""
