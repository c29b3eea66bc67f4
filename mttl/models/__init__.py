"""Language models as backbones."""
