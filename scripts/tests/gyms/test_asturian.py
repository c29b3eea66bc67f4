from helpers.command import ROOT, load_recipe

ASTURIAN = load_recipe(ROOT / "scripts" / "gyms" / "asturian.py")


def test_words_of_a_tagged_sentence() -> None:
    """An answer as Apertium 3.8.3 prints it, with a contraction and an unknown word."""
    answer = "^Códigu/códigu<n><m>$ ^del/de<pr>+el<det><def>$ ^UDP/*UDP$-^ye/ser<vbser>$"
    assert list(ASTURIAN.words_of(answer)) == [
        ("Códigu", "NOUN"),
        ("del", "ADP"),
        ("UDP", ""),
        ("-", "PUNCT"),
        ("ye", "AUX"),
    ]
