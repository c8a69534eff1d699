package lvmd

// crash is called between any two effects of an operation, with a name for
// the place. Tests end an lvmd's life there.
func (s *Service) crash(point string) {
	if s.crashPoint != nil {
		s.crashPoint(point)
	}
}
