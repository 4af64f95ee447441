package rlqs

// ReportBytes returns what is charged for a report.
var ReportBytes = reportBytes

// Memory returns how many bytes are charged to clients.
func (s *Service) Memory() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.memory.Used()
}
