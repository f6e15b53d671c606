"""Recipes that ship with the product, one YAML file each."""
