package workloop

import "k8s.io/client-go/util/workqueue"

// roundRobin is a queue in which tenants take turns. The keys of one tenant stay in order. The work
// queue that contains it guards it.
type roundRobin[K comparable] struct {
	tenant func(K) string
	// waiting holds the waiting keys by tenant. round holds the tenants that have any, the next one
	// first.
	waiting map[string][]K
	round   []string
	count   int
}

func newRoundRobin[K comparable](tenant func(K) string) workqueue.Queue[K] {
	if tenant == nil {
		tenant = func(K) string { return "" }
	}
	return &roundRobin[K]{tenant: tenant, waiting: map[string][]K{}}
}

// Touch does nothing: a key that is added again keeps its place.
func (q *roundRobin[K]) Touch(K) {}

func (q *roundRobin[K]) Len() int { return q.count }

func (q *roundRobin[K]) Push(key K) {
	tenant := q.tenant(key)
	if len(q.waiting[tenant]) == 0 {
		q.round = append(q.round, tenant)
	}
	q.waiting[tenant] = append(q.waiting[tenant], key)
	q.count++
}

func (q *roundRobin[K]) Pop() K {
	tenant := q.round[0]
	q.round = q.round[1:]
	keys := q.waiting[tenant]
	key := keys[0]
	if len(keys) > 1 {
		q.waiting[tenant] = keys[1:]
		q.round = append(q.round, tenant)
	} else {
		delete(q.waiting, tenant)
	}
	q.count--
	return key
}
