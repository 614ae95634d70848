"""page"""


def page_of(about, results):
    return "\n".join(map(str, results)) + "\n"
