"""Figures of Luo et al. 2020 (https://arxiv.org/abs/2008.09643) for CIFAR-10, for comparison.

Their network is a Wide ResNet-28-10; ours are smaller.
"""

# Table 1: median and mean calibration error over everything, with privacy.
TABLE_1 = {
    "none": (0.2187, 0.2924),
    "one source": (0.1241, 0.1359),
    "binning, paper": (0.1168, 0.1181),
    "ECE-T [0.5, 3]": (0.1160, 0.1668),
    "NLL-T [0.5, 3]": (0.1157, 0.1653),
    "Acc-T [0.5, 3]": (0.0836, 0.1199),
}

# Table 3: accuracy at severity 5.
TABLE_3 = {
    "brightness": 0.9290,
    "contrast": 0.4656,
    "defocus_blur": 0.6402,
    "elastic_transform": 0.7616,
    "fog": 0.7639,
    "frost_made": 0.6907,  # theirs is of photographs
    "gaussian_noise": 0.2889,
    "glass_blur": 0.5313,
    "impulse_noise": 0.2940,
    "jpeg_compression": 0.7056,
    "motion_blur": 0.7062,
    "pixelate": 0.5137,
    "shot_noise": 0.3581,
    "snow": 0.7975,
    "zoom_blur": 0.7163,
    "clean": 0.9613,
}

# Table 4: calibration error without privacy: as it is, NLL-T, Acc-T, ECE-T.
TABLE_4 = {
    "brightness": (0.0456, 0.0194, 0.0278, 0.0182),
    "contrast": (0.4202, 0.0503, 0.0348, 0.0368),
    "defocus_blur": (0.2431, 0.0381, 0.0372, 0.0366),
    "elastic_transform": (0.1555, 0.0287, 0.0264, 0.0319),
    "fog": (0.1813, 0.0463, 0.0433, 0.0435),
    "frost_made": (0.2207, 0.0636, 0.0570, 0.0581),
    "gaussian_noise": (0.6052, 0.0624, 0.0364, 0.0530),
    "glass_blur": (0.3434, 0.0426, 0.0393, 0.0389),
    "impulse_noise": (0.4963, 0.0570, 0.0499, 0.0566),
    "jpeg_compression": (0.2000, 0.0423, 0.0344, 0.0338),
    "motion_blur": (0.2153, 0.0430, 0.0395, 0.0427),
    "pixelate": (0.3840, 0.0676, 0.0620, 0.0649),
    "shot_noise": (0.5282, 0.0503, 0.0464, 0.0484),
    "snow": (0.1412, 0.0390, 0.0321, 0.0391),
    "zoom_blur": (0.1931, 0.0382, 0.0343, 0.0363),
    "clean": (0.0251, 0.0078, 0.0089, 0.0075),
}
