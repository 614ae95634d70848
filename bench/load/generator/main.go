// Command generator is many agents and watchers of one job in one process, told what to do by JSON
// lines on standard input.
//
// The first line is the setup. Each line after it is answered by one line once it is done. Ends with
// its standard input.
//
// It says what a real agent says, when it would say it, over a connection of its own for each agent;
// workers are pretended. It is Go because ten thousand agents have to share two cores with the master
// that they measure. Here: the lines. What an agent does is in agent.go, what is counted in fleet.go.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime/debug"
)

const (
	// gcPercent spends memory to save time: what lives is connections, and marking them is work that
	// comes in gusts just when everybody is told of something.
	gcPercent    = 400
	longestLine  = 1 << 20
	failedToTell = 1
)

// setup is what the conductor says once.
type setup struct {
	Target string `json:"target"`
	JobUID string `json:"job_uid"`
	// Key is the root key of the job's authority, hex.
	Key string `json:"key"`
	// CA is the authority's certificate, PEM.
	CA    string `json:"ca"`
	Ranks int    `json:"ranks"`
	// Options of a channel to the master, as the real agents use them.
	Options options `json:"options"`
}

// order is any line but the first.
type order struct {
	Do    string `json:"do"`
	First int    `json:"first"`
	Last  int    `json:"last"`
	// Held and Slow are ranks.
	Held     *int    `json:"held"`
	Slow     *int    `json:"slow"`
	Rank     int     `json:"rank"`
	Loss     float64 `json:"loss"`
	Count    int     `json:"count"`
	Interval float64 `json:"interval"`
	// Deaf: a watcher that never reads.
	Deaf  bool  `json:"deaf"`
	Tries []try `json:"tries"`
}

type moment struct {
	At float64 `json:"at"`
}

func main() {
	debug.SetGCPercent(gcPercent)
	allowPings()
	if err := serve(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "generator:", err)
		os.Exit(failedToTell)
	}
}

func serve(in io.Reader, out io.Writer) error {
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, longestLine)
	if !lines.Scan() {
		return lines.Err()
	}
	var said setup
	if err := json.Unmarshal(lines.Bytes(), &said); err != nil {
		return fmt.Errorf("setup: %w", err)
	}
	fleet, err := newFleet(said)
	if err != nil {
		return fmt.Errorf("setup: %w", err)
	}
	answers := json.NewEncoder(out)
	for lines.Scan() {
		var say order
		if err := json.Unmarshal(lines.Bytes(), &say); err != nil {
			return fmt.Errorf("%s: %w", lines.Text(), err)
		}
		answer, err := obey(fleet, say)
		if err != nil {
			return fmt.Errorf("%s: %w", lines.Text(), err)
		}
		if err := answers.Encode(answer); err != nil {
			return err
		}
	}
	return lines.Err()
}

func obey(fleet *fleet, say order) (any, error) {
	switch say.Do {
	case "connect":
		if err := fleet.connect(say.First, say.Last, say.Held, say.Slow); err != nil {
			return nil, err
		}
		return fleet.state(), nil
	case "state":
		return fleet.state(), nil
	case "forget":
		fleet.forget()
	case "watch":
		return struct{}{}, fleet.watch(say.Count, say.Interval, say.Deaf)
	case "delays":
		return delays(say.Tries), nil
	default:
		return one(fleet, say)
	}
	return struct{}{}, nil
}

func one(fleet *fleet, say order) (any, error) {
	agent := fleet.agents[say.Rank]
	if agent == nil {
		return nil, fmt.Errorf("there is no such order, or no agent of rank %d", say.Rank)
	}
	switch say.Do {
	case "warm":
		return moment{agent.sayWarm()}, nil
	case "fail":
		return moment{agent.fail()}, nil
	case "tell_loss":
		return moment{agent.tellLoss(say.Loss)}, nil
	case "deafen":
		return struct{}{}, agent.deafen()
	}
	return nil, fmt.Errorf("there is no order %q", say.Do)
}
