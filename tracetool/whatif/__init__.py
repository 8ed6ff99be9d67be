"""One schedule in one scenario, evaluated: results, answers, depth, accuracy and what to make of them."""
