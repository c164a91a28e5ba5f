"""Thirty varied prompts: short and long, prose, code, lists, numbers, several scripts; five are over 512 tokens."""

_STORY = (
    "The lighthouse keeper counted the ships every evening and wrote the number into a thick blue book. "
    "On the first of March there were {n} of them, and the wind came from the north. "
    "He lit the lamp, trimmed the wick, and listened to the radio until the news was over. "
)
_CODE = '''def moving_average_{n}(values, width):
    """Return the averages of every `width` neighbours."""
    total, result = 0.0, []
    for index, value in enumerate(values):
        total += value
        if index >= width:
            total -= values[index - width]
        if index >= width - 1:
            result.append(total / width)
    return result

'''
_TABLE = "| {n} | copper | {n}.5 kg | shelf {n} | checked by Ada |\n"

SHORT = [
    "Here is the English alphabet: ABC",
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "1, 1, 2, 3, 5, 8, 13, 21,",
    "def fibonacci(n):\n    ",
    "SELECT name, price FROM products WHERE",
    "Dear Sir or Madam,\n\nI am writing to",
    "Q: What is the boiling point of water?\nA:",
    "To be, or not to be, that is the",
    "import numpy as np\n\nx = np.",
    "Die Hauptstadt von Deutschland ist",
    "El perro corre por el parque y",
    "Le petit chat est assis sur",
    "日本の首都は",
    "Привет, меня зовут",
    "Recipe for pancakes:\n- 2 eggs\n- 1 cup flour\n-",
    '{"name": "Alice", "age": 30, "city": "',
    "<html>\n<head>\n<title>",
    "The derivative of x^2 with respect to x is",
    "x",
    " ",
    "\n\n\n",
    "Roses are red,\nViolets are blue,\n",
    "In 1969, Neil Armstrong",
    "Translate to French: 'Good morning, how are you?'\n",
]
LONG = [
    "".join(_STORY.format(n=n) for n in range(1, 14)) + "Then, one night,",
    "".join(_CODE.format(n=n) for n in range(1, 9)) + "def moving_average_9(",
    "".join(_TABLE.format(n=n) for n in range(1, 40)) + "| 40 | copper |",
    "Count: " + ", ".join(str(n) for n in range(1, 230)) + ",",
    "".join(_STORY.format(n=n * 7) for n in range(1, 22)) + "In the morning",
]
PROMPTS = SHORT + LONG
