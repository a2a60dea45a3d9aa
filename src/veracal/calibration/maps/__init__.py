"""Maps that bring probabilities closer to frequencies: records with public parameters."""

from veracal.calibration.maps.base import Identity, Map
from veracal.calibration.maps.beta import Beta
from veracal.calibration.maps.binned import Binned
from veracal.calibration.maps.doubt import Doubt
from veracal.calibration.maps.files import from_json, load_map, save_map
from veracal.calibration.maps.isotonic import Isotonic
from veracal.calibration.maps.platt import Platt
from veracal.calibration.maps.temperature import Temperature
from veracal.calibration.maps.two_temperatures import TwoTemperatures

__all__ = [
    "Beta",
    "Binned",
    "Doubt",
    "Identity",
    "Isotonic",
    "Map",
    "Platt",
    "Temperature",
    "TwoTemperatures",
    "from_json",
    "load_map",
    "save_map",
]
