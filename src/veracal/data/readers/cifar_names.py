"""Published names of CIFAR's classes and of the corruptions of CIFAR-C."""


def _words(text: str) -> tuple[str, ...]:
    """Cut a list of names at its blanks."""
    return tuple(text.split())


CIFAR10 = _words("airplane automobile bird cat deer dog frog horse ship truck")

CIFAR100 = _words(
    """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus
    butterfly camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch
    crab crocodile cup dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo
    keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle mountain
    mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain
    plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk
    skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone
    television tiger tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm
    """
)

CIFAR100_COARSE = _words(
    """
    aquatic_mammals fish flowers food_containers fruit_and_vegetables
    household_electrical_devices household_furniture insects large_carnivores
    large_man-made_outdoor_things large_natural_outdoor_scenes large_omnivores_and_herbivores
    medium_mammals non-insect_invertebrates people reptiles small_mammals trees vehicles_1
    vehicles_2
    """
)

CORRUPTIONS = _words(
    """
    gaussian_noise shot_noise impulse_noise defocus_blur glass_blur motion_blur zoom_blur snow
    frost fog brightness contrast elastic_transform pixelate jpeg_compression
    """
)
"""The 15 corruptions of Hendrycks and Dietterich (2019), in their order."""

EXTRA_CORRUPTIONS = ("speckle_noise", "gaussian_blur", "spatter", "saturate")
"""Four more that they set apart for validation."""
