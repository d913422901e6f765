"""Planes that carry frames from one rank to another."""
