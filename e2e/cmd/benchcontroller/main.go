// Command benchcontroller measures the controller against a real control plane
// and many fake nodes: the controller as it is shipped, the real API server,
// scheduler and controller-manager, the real uplink and its protocol; only
// behind it there is no disk. It prints Markdown tables.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// plan is what is measured.
type plan struct {
	nodes, burst, rounds int
	singles              int
	fillNodes            int
	fillRate             float64
	churnRate            float64
	churnTime            time.Duration
	churnOnly            bool
	scheduler            string
	scale                scalePlan
}

// singleRate is how many Pods per second come where each is to be alone.
const singleRate = 0.5

// setting is what a measurement is made with.
type setting struct {
	createTime time.Duration // how long the fake nodes take to make a volume
	clientRate int           // requests per second of the scheduler and the controller-manager; 0 for their defaults
	packed     bool          // the scheduler fills one node after the other, and does not spread Pods
}

// rate shows the setting's clientRate in a table.
func (s setting) rate() string {
	if s.clientRate == 0 {
		return "defaults"
	}
	return strconv.Itoa(s.clientRate) + " per second"
}

// order shows in a table how the scheduler chooses nodes.
func (s setting) order() string {
	if s.packed {
		return "one by one"
	}
	return "all alike"
}

// highRate is more than the scheduler and the controller-manager want.
const highRate = 1000

var (
	burstSettings   = []setting{{}, {createTime: 200 * time.Millisecond}, {clientRate: highRate}}
	fillingSettings = []setting{{}, {clientRate: highRate}, {clientRate: highRate, packed: true}}
)

// bursts are the measurements with one setting.
type bursts struct {
	setting

	single *burst // nil for none
	rounds []burst
}

func main() {
	var p plan
	flag.IntVar(&p.nodes, "nodes", 50, "number of fake nodes")
	flag.IntVar(&p.burst, "burst", 100, "Pods in a burst")
	flag.IntVar(&p.rounds, "rounds", 3, "bursts of each kind; medians are printed")
	flag.IntVar(&p.singles, "singles", 20, "Pods that come one by one; 0 leaves them out")
	flag.IntVar(&p.fillNodes, "fill-nodes", 20, "nodes in the experiment that fills them exactly")
	flag.Float64Var(&p.fillRate, "fill-rate", 40, "Pods per second in that experiment")
	flag.Float64Var(&p.churnRate, "churn-rate", 10, "Pods per second that come and, twenty seconds later, go")
	flag.DurationVar(&p.churnTime, "churn", 10*time.Minute, "for how long they do; with -scale, 0 leaves it out")
	flag.BoolVar(&p.churnOnly, "churn-only", false, "measure nothing else")
	flag.StringVar(&p.scheduler, "scheduler", "", `what gives Pods their nodes: "carve-scheduler", or kube-scheduler if empty`)
	flag.Func("scale", "measure only how the controller scales, with that many `nodes`, separated by commas", numbers(&p.scale.nodes))
	p.scale.bursts = []int{100}
	flag.Func("scale-bursts", "`Pods` at once there, separated by commas", numbers(&p.scale.bursts))
	flag.IntVar(&p.scale.volumes, "volumes", 20, "volumes that each of these nodes has from the beginning")
	flag.IntVar(&p.scale.held, "held", 1000, "how many of them have a PersistentVolume, at most")
	flag.IntVar(&p.scale.classes, "classes", 1, "StorageClasses there, and device classes of each node")
	flag.IntVar(&p.scale.full, "full", 0, "percentage of these nodes that have no space for a Pod's volume")
	flag.DurationVar(&p.scale.createTime, "create-time", 200*time.Millisecond, "how long a volume group there takes to make or to delete a volume, one after the other")
	flag.BoolVar(&p.scale.restarts, "restarts", true, "measure there also what follows when agents and replicas restart, and when a node hangs")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, p, os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "benchcontroller:", err)
		os.Exit(1)
	}
}

// numbers reads numbers that are separated by commas.
func numbers(into *[]int) func(string) error {
	return func(text string) error {
		*into = nil
		for _, number := range strings.Split(text, ",") {
			n, err := strconv.Atoi(number)
			if err != nil {
				return err
			}
			*into = append(*into, n)
		}
		return nil
	}
}

func run(ctx context.Context, p plan, out, progress io.Writer) error {
	programs, cleanUp, err := build(ctx, p.scheduler, progress)
	if err != nil {
		return err
	}
	defer cleanUp()
	if len(p.scale.nodes) > 0 { // each wait of it is bounded
		scaled, err := measureScale(ctx, p, programs, progress)
		if len(scaled) == 0 {
			return err
		}
		return errors.Join(err, printScale(out, p, scaled))
	}
	ctx, cancel := context.WithTimeout(ctx, time.Hour)
	defer cancel()
	churned, err := measureChurn(ctx, p, programs, progress)
	if err != nil {
		return err
	}
	if err := printChurn(out, churned); err != nil || p.churnOnly {
		return err
	}
	var filled []filling
	for _, s := range fillingSettings {
		b, err := measureFilling(ctx, p, s, programs, progress)
		if err != nil {
			return err
		}
		filled = append(filled, filling{s, *b})
	}
	if err := printFilling(out, p, filled); err != nil {
		return err
	}
	bursts, err := measureBursts(ctx, p, programs, progress)
	if err != nil {
		return err
	}
	return printBursts(out, p, bursts)
}

func measureBursts(ctx context.Context, p plan, programs *programs, progress io.Writer) ([]bursts, error) {
	var results []bursts
	for _, s := range burstSettings {
		result := bursts{setting: s}
		err := withCluster(ctx, clusterOptions{
			programs: programs, progress: progress, nodes: p.nodes, nodeBytes: 1 << 40, createTime: s.createTime, clientRate: s.clientRate,
			scheduler: p.scheduler,
		}, func(c *cluster) error {
			for round := range p.rounds + 1 { // the first does not count
				fmt.Fprintf(progress, "burst %d of %d, creates take %s\n", round, p.rounds, s.createTime)
				b, err := c.burst(ctx, p.burst, 0)
				if err != nil {
					return err
				}
				if round > 0 {
					result.rounds = append(result.rounds, *b)
				}
			}
			if p.singles == 0 {
				return nil
			}
			fmt.Fprintf(progress, "%d Pods one by one, creates take %s\n", p.singles, s.createTime)
			var err error
			result.single, err = c.burst(ctx, p.singles, singleRate)
			return err
		})
		if err != nil {
			return nil, err
		}
		results = append(results, result)
	}
	return results, nil
}

// filling is what the filling of nodes took with one setting.
type filling struct {
	setting
	burst
}

// measureFilling fills nodes to the last byte with Pods that come at a rate.
func measureFilling(ctx context.Context, p plan, s setting, programs *programs, progress io.Writer) (*burst, error) {
	const perNode = 10
	var result *burst
	err := withCluster(ctx, clusterOptions{
		programs: programs, progress: progress, nodes: p.fillNodes, nodeBytes: perNode << 30, createTime: s.createTime, clientRate: s.clientRate,
		packed: s.packed, scheduler: p.scheduler,
	}, func(c *cluster) error {
		fmt.Fprintf(progress, "filling %d nodes, %s\n", p.fillNodes, s.order())
		var err error
		result, err = c.burst(ctx, p.fillNodes*perNode, p.fillRate)
		return err
	})
	return result, err
}
