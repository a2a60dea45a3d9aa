"""What is publicly known about the German credit table."""

from veracal.data.columns import Category, Number, Target
from veracal.data.schema import Grouping, Schema

# Categories are those of UCI's description, with the words of Weka's file. Bounds of numbers
# are round figures for the quantity itself, except for the four columns that are codes.
GERMAN_CREDIT = Schema(
    {
        "checking_status": Category(("<0", "0<=X<200", ">=200", "no checking")),
        "duration": Number(0, 120),
        "credit_history": Category(
            (
                "no credits/all paid",
                "all paid",
                "existing paid",
                "delayed previously",
                "critical/other existing credit",
            )
        ),
        "purpose": Category(
            (
                "new car",
                "used car",
                "furniture/equipment",
                "radio/tv",
                "domestic appliance",
                "repairs",
                "education",
                "vacation",
                "retraining",
                "business",
                "other",
            )
        ),
        "credit_amount": Number(0, 20_000),
        "savings_status": Category(
            ("<100", "100<=X<500", "500<=X<1000", ">=1000", "no known savings")
        ),
        "employment": Category(("unemployed", "<1", "1<=X<4", "4<=X<7", ">=7")),
        "installment_commitment": Number(1, 4),
        "personal_status": Category(
            (
                "male div/sep",
                "female div/dep/mar",
                "male single",
                "male mar/wid",
                "female single",
            )
        ),
        "other_parties": Category(("none", "co applicant", "guarantor")),
        "residence_since": Number(1, 4),
        "property_magnitude": Category(
            ("real estate", "life insurance", "car", "no known property")
        ),
        "age": Number(18, 100),
        "other_payment_plans": Category(("bank", "stores", "none")),
        "housing": Category(("rent", "own", "for free")),
        "existing_credits": Number(1, 4),
        "job": Category(
            (
                "unemp/unskilled non res",
                "unskilled resident",
                "skilled",
                "high qualif/self emp/mgmt",
            )
        ),
        "num_dependents": Number(1, 2),
        "own_telephone": Category(("none", "yes")),
        "foreign_worker": Category(("yes", "no")),
        "class": Target(("bad", "good")),
    },
    groups={
        "age": Grouping("age", (18, 25, 100)),
        "personal_status": Grouping("personal_status"),
        "foreign_worker": Grouping("foreign_worker"),
    },
    size=1_000,
    name="german-credit",
)
