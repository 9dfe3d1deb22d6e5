"""One class per failure that a person can meet, all under :class:`HeadraceError`.

Every message says what happened, to what, and what to do next.  Errors that carry data
carry it as attributes, so that a program never has to read a message.
"""

from headrace.errors.epoch_subscriptions import *
from headrace.errors.epochs import *
from headrace.errors.groups import *
from headrace.errors.log import *
from headrace.errors.reader_groups import *
from headrace.errors.readers import *
from headrace.errors.regions import *
from headrace.errors.spark import *

# Programs know them by this name, wherever they stand: in a traceback, or pickled.
for _each in list(globals().values()):
    if isinstance(_each, type):
        _each.__module__ = __name__
