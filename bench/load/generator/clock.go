package main

import (
	"time"

	"golang.org/x/sys/unix"
)

// The clock that all processes of the machine share: CLOCK_MONOTONIC, Python's time.monotonic. Go's
// monotonic readings are the same clock since a moment of its own.

var began, beganAt = shared()

func shared() (time.Time, float64) {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		panic(err)
	}
	return time.Now(), float64(now.Sec) + float64(now.Nsec)/1e9
}

// monotonic is the shared clock's time now, s.
func monotonic() float64 {
	return beganAt + time.Since(began).Seconds()
}
