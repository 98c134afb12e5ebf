"""Check 4, Loss: implemented losses against their written equations, value and gradient, on a fixed input."""
