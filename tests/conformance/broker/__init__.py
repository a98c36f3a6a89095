"""What a broker answers: the same questions to ours and to Apache's, one group of sections a file."""
