"""From a step and its shapes to the function that runs within the budget."""
