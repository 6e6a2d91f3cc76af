"""A clock that moves only when told to."""


class FakeClock:
    def __init__(self):
        self.time_s = 1000.0
        self.slept_s = []

    def now_s(self):
        return self.time_s

    def sleep(self, seconds):
        self.slept_s.append(seconds)
        self.time_s += seconds

    def advance(self, seconds):
        self.time_s += seconds
