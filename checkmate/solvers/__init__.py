"""How a plan is found. Every solver writes a `Plan`; none of its own figures is ever reported."""
