package main

import (
	"math"
	"time"
)

// How long an agent waits before it dials its master again, and from one heartbeat to the next:
// holdfast_agent.policies.liveness and beat once more. A test asks both for the same tries.

const (
	firstDelay    = 0.05
	maxDelay      = 1.0
	perAgent      = 0.004
	firstConnect  = 1.5
	firstConnects = 2
	connectLimit  = 10.0
	welcomeLimit  = 5.0
	longestWait   = 20.0
	turns         = 2
	mostDoublings = 8
	together      = 32
	golden        = 0.6180339887498949
)

// delay is the pause before the next try, s.
func delay(attempt int, share float64, refused bool, crowd int) float64 {
	doubled := firstDelay * float64(int(1)<<min(attempt, mostDoublings))
	spread := float64(crowd) * perAgent
	if refused && spread > maxDelay {
		return share * spread
	}
	return min(maxDelay, doubled) * (1 + share) / 2
}

// connectDeadline is how long an attempt to connect may take, s.
func connectDeadline(crowd, attempt int) float64 {
	doublings := min(max(0, attempt-firstConnects+1), mostDoublings)
	alone := min(connectLimit, firstConnect*float64(int(1)<<doublings))
	return max(alone, float64(turns*crowd)*perAgent)
}

// welcomeDeadline is how long a Welcome may take once there is a connection, s.
func welcomeDeadline(crowd int) float64 {
	return max(welcomeLimit, float64(crowd)*perAgent)
}

// longer is the deadline of the next Welcome after one that did not come in time, s.
func longer(patience float64) float64 {
	return max(patience, min(2*patience, longestWait))
}

// pause is the time from one heartbeat to the next, s; wall is the agent's clock.
func pause(rank int, interval, wall float64) float64 {
	offset := math.Mod(float64(rank/together)*golden, 1) * interval
	rest := math.Mod(offset-wall, interval)
	if rest < 0 {
		rest += interval
	}
	if rest < interval/2 {
		rest += interval
	}
	return rest
}

// try is a question of the test.
type try struct {
	Rank     int     `json:"rank"`
	Interval float64 `json:"interval"`
	Wall     float64 `json:"wall"`
	Attempt  int     `json:"attempt"`
	Share    float64 `json:"share"`
	Refused  bool    `json:"refused"`
	Crowd    int     `json:"crowd"`
	Patience float64 `json:"patience"`
}

type waits struct {
	Delay   float64 `json:"delay"`
	Connect float64 `json:"connect"`
	Welcome float64 `json:"welcome"`
	Longer  float64 `json:"longer"`
	Pause   float64 `json:"pause"`
}

func delays(tries []try) []waits {
	found := make([]waits, 0, len(tries))
	for _, at := range tries {
		found = append(found, waits{
			Delay:   delay(at.Attempt, at.Share, at.Refused, at.Crowd),
			Connect: connectDeadline(at.Crowd, at.Attempt),
			Welcome: welcomeDeadline(at.Crowd),
			Longer:  longer(at.Patience),
			Pause:   pause(at.Rank, at.Interval, at.Wall),
		})
	}
	return found
}

func seconds(number float64) time.Duration {
	return time.Duration(number * float64(time.Second))
}
