import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
README = (HERE / "README.md").read_text(encoding="utf-8")
# Links and pictures of a package page have no repository around them.
DESCRIPTION = re.sub(r"!?\[([^\]]*)\]\((?!https?:)[^)]*\)", r"\1", README)
# Nbconvert: tutorials as pages.
DOCS = ["mkdocs>=1.6", "mkdocs-material>=9.5", "mkdocstrings[python]>=0.26", "nbconvert>=7"]

setup(
    name="checkmate-tf",
    # Read, not imported: the package's own requirements are not installed yet.
    version=re.search(
        r'^__version__ = "(.+)"$',
        (HERE / "checkmate" / "version.py").read_text(encoding="utf-8"),
        re.MULTILINE,
    )[1],
    description=(
        "Train TensorFlow and Keras models that do not fit: optimal rematerialization within a"
        " memory budget"
    ),
    long_description=DESCRIPTION,
    long_description_content_type="text/markdown",
    author="The Checkmate maintainers",
    keywords="tensorflow keras memory rematerialization gradient-checkpointing out-of-memory milp",
    project_urls={
        "Checkmate, the paper": "https://arxiv.org/abs/1910.02653",
        "DTR, the paper": "https://arxiv.org/abs/2006.09616",
    },
    license="Apache-2.0",
    python_requires=">=3.10,<3.14",
    packages=find_packages(include=["checkmate", "checkmate.*"]),
    package_data={
        "checkmate": ["py.typed", "README.md"],
        "checkmate.core": ["schemas/*.json"],
        "checkmate.plot": ["page.html"],
    },
    install_requires=[
        "tensorflow>=2.18",  # brings Keras 3
        "numpy>=1.26",
        "cylp>=0.93",  # CBC and CLP
        "ortools>=9.10",  # SCIP, CP-SAT
        "scipy>=1.11",  # its HiGHS (scipy.optimize.milp) solves the snapshot relaxation
        # Compiles simulated annealing on the user's machine: the package itself needs no compiler.
        "numba>=0.60",
        "networkx>=3.0",  # articulation points, import and export of graphs
        "matplotlib>=3.8",  # pictures
        "click>=8.1",  # the command line
        "rich>=13",  # progress bars and tables in a terminal
        "psutil>=5.9",  # free memory, for budget="auto" on a CPU
        "typing_extensions>=4.6",  # Unpack, for the options of all that plans a step
        "platformdirs>=4",  # where measured costs are kept between runs
    ],
    extras_require={
        "docs": DOCS,
        "test": [
            "pytest>=8",
            "pytest-timeout",
            "pytest-xdist",  # one process per core
            "playwright",
            "hypothesis>=6.100",
            "jsonschema>=4.0",  # the schemas of files beside their readers
            "nbclient",
            "nbformat",
            "ipykernel",
            "tf_keras>=2.18",  # models of Keras 2
            "ruff",
            "mypy",
            *DOCS,
        ],
        # Programs of `python -m benchmarks foreign`.
        "clients": ["keras-hub>=0.20", "tf_keras>=2.18", "tensorflow-probability>=0.25"],
        "gpu": [
            "tensorflow[and-cuda]>=2.18",
            "nvidia-ml-py",
        ],  # nvidia-ml-py: free GPU memory, for budget="auto"
    },
    entry_points={"console_scripts": ["checkmate=checkmate.cli:main"]},
    classifiers=[
        "Development Status :: 4 - Beta",
        "Environment :: Console",
        "Environment :: GPU :: NVIDIA CUDA",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "License :: OSI Approved :: Apache Software License",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
        *(f"Programming Language :: Python :: 3.{minor}" for minor in range(10, 14)),
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
)
