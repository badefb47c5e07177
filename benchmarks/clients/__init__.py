"""Programs as others write them: models by the constructors of public packages, and training code
in the style of published examples. The wheel leaves them out, as it does the zoo."""
