package controller

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

func TestANewLeaderAsksFewNodesAtATimeAndReachesEach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const unresponsive = 2 * announcedAtOnce
		var nodes []string
		for i := range 10 * announcedAtOnce {
			nodes = append(nodes, fmt.Sprint(i))
		}
		begin := time.Now()
		events := make(chan int)
		asked := make(chan string, len(nodes))
		most := make(chan int)
		go func() {
			now, highest := 0, 0
			for change := range events {
				now += change
				highest = max(highest, now)
			}
			most <- highest
		}()
		announceTo(t.Context(), nodes, func(ctx context.Context, node string) {
			events <- 1
			asked <- node
			if len(asked) <= unresponsive {
				<-ctx.Done()
			} else {
				time.Sleep(time.Millisecond)
			}
			events <- -1
		})
		close(events)
		if n := <-most; n != announcedAtOnce || len(asked) != len(nodes) {
			t.Errorf("%d nodes are asked at a time, want %d; %d of %d are asked", n, announcedAtOnce, len(asked), len(nodes))
		}
		if took := time.Since(begin); took > 3*announceTimeout {
			t.Errorf("it takes %v with %d nodes that do not answer, of which %d are waited for at a time for %v", took, unresponsive, announcedAtOnce, announceTimeout)
		}
	})
}

func TestANewLeaderWaitsForNodesThatDoNotAnswerOnlySoLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		announceTo(t.Context(), make([]string, 100*announcedAtOnce), func(ctx context.Context, _ string) { <-ctx.Done() })
		if took := time.Since(begin); took > announcePeriod {
			t.Errorf("it waits for %v, want %v at most", took, announcePeriod)
		}
	})
}
